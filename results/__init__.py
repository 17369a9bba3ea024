"""Raw artefacts to rows, rows to CSVs, two arms to a comparison. Starts nothing."""
