"""A worker's end of a distributed store: a line to every server, and the store that asks over them."""
