"""A local page over the ledger and live runs. Records in, pages out: it measures, decides and writes nothing.

What it needs from the doctor's stages comes in as functions (`Sources`), so that it knows only ledger and report.
"""
