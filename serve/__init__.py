"""One arm's server: its command, its life, and the node that it runs on."""
