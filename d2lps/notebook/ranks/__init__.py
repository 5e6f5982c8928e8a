"""The processes behind a notebook: ``d2lps.ranks`` starts them, a ``%%px`` cell runs on all of them."""
