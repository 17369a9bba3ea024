"""What a running server does: raw artefacts from real clients, and no statistics."""
