"""What `campaign` tries: a module a kind of fault, and what they share: the things they hit, outcomes, processes."""
