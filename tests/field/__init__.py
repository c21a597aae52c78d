"""Reports from the field as data: each file of reports/ has a host in words, what is asked, and the right answer."""
