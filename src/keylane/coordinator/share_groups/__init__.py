"""Share groups (KIP-932), purely: members and what each is given to read, and which record is out with whom."""
