"""Strangers' reports as data: each file of reports/ is a host in words, what is asked of it, and the right answer."""
