"""``engine="mxnet"``: the words of the store on MXNet's own ps-lite."""
