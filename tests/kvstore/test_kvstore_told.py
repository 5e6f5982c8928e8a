"""Errors of servers come in the language of the worker, although a server speaks English."""

import json
import re

import pytest
import torch
from helpers.stores import each

from d2lps import kvstore
from d2lps.kvstore import KVError, Refused, Timeout, WorkerLost
from d2lps.kvstore.replication.messages import Apply, Facts, Lose, Snapshot, View
from d2lps.kvstore.server import coding
from d2lps.kvstore.told import Told, packed, told, unpacked
from d2lps.kvstore.worker.client import as_error
from d2lps.messages import speak


def fails(kind, call, **options):
    """Return the sentence that worker 0 reads in each language if it does ``call`` after worker 1 has left."""
    with kvstore.cluster("dist_sync", 2, 2, deadline=1, **options) as (one, other):
        each((one, other), lambda store: store.init("w", torch.zeros(3)))
        if kind is WorkerLost:
            other.close()
        said = {}
        for language in ("en", "vi", "zh"):
            speak(language)
            with pytest.raises(kind) as error:
                call(one)
            said[language] = str(error.value)
        return said


@pytest.mark.slow
@pytest.mark.parametrize("replicas", [0, 1])
def test_a_worker_that_has_left_is_named_in_the_language_of_the_reader(replicas):
    def push(store):
        store.pushpull("w", torch.ones(3))

    said = fails(WorkerLost, push, replicas=replicas)
    assert said == {
        "en": "worker 1 has left (it said goodbye)",
        "vi": "máy thợ (worker) 1 đã rời đi (nó đã chào tạm biệt)",
        "zh": "工作节点（worker）1 已离开（它已道别）",
    }


@pytest.mark.slow
@pytest.mark.parametrize("replicas", [0, 1])
def test_a_wait_that_is_too_long_says_so_in_the_language_of_the_reader(replicas):
    said = fails(Timeout, lambda store: store.pushpull("w", torch.ones(3)), replicas=replicas)
    assert said["en"].startswith("the pull of key 'w'") and said["en"].endswith("of worker 1")
    assert said["vi"].startswith("lần kéo (pull) khóa (key) 'w'") and said["vi"].endswith("của máy thợ (worker) 1")
    assert said["zh"].startswith("对键（key）'w'") and "工作节点（worker）1" in said["zh"]


def test_an_option_is_refused_in_the_language_of_the_reader():
    speak("vi")
    with pytest.raises(Refused, match="lost = 'ignore': chỉ có thể là một trong fail, drop"):
        kvstore.cluster(lost="ignore")


def test_a_sentence_is_translated_at_the_other_end():
    sentence = told("store.told.lost", rank=2, why=told("store.told.ended"))
    travelled = json.loads(json.dumps(packed(sentence)))
    speak("zh")
    again = unpacked(travelled)
    assert again == "工作节点（worker）2 已失去联系（它的连接已断开）" and packed(again) == travelled
    speak("en")
    assert unpacked(packed(again)) == sentence == "worker 2 is lost (its connection has ended)"


def test_the_loss_of_a_worker_travels_to_the_backup_with_its_sentence():
    lose = Lose(1, True, (told("store.told.left", rank=1, why=told("store.told.goodbye")), "failed"))
    view = View(3, ())
    for message in (Apply(view, 4, lose), Snapshot(view, 4, (), Facts(losses=(lose,)))):
        travelled = coding.decode(json.loads(json.dumps(coding.encode(message, []))), iter(()))
        speak("vi")
        (back,) = [travelled.command] if isinstance(travelled, Apply) else travelled.facts.losses
        speak("en")
        assert back == lose and isinstance(back.why[0], Told) and packed(back.why[0]) == packed(lose.why[0])


@pytest.mark.parametrize(
    "sent", [None, 7, [], ["store.told.lost"], ["no.key", {}], ["store.told.lost", {}], ["a", 1, 2]]
)
def test_what_is_no_sentence_leaves_the_one_that_was_sent(sent):
    error = as_error({"kind": "Refused", "sentence": "said by the server"} | ({} if sent is None else {"told": sent}))
    assert type(error) is Refused and isinstance(error, KVError)
    assert re.fullmatch("said by the server|7", str(error))
