"""Records in, bytes out: terminal, Markdown, JSON. Computes no figure."""
