"""Claim providers: what makes the things that a group claims (folders, here) and takes them away again."""
