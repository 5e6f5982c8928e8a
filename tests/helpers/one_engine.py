"""A plugin of pytest, ``-p helpers.one_engine``: a server without replicas is a slot with one member."""

from d2lps.kvstore.replicas.lone import LoneStore
from d2lps.kvstore.server import server, session, shard_store

shard_store.ShardStore = server.ShardStore = session.ShardStore = LoneStore
