"""Studies: does a design pay, on the user's own data?"""
