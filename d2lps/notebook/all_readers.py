"""The kernel of a notebook that is executed once for the readers of all languages.

Printed text and error messages are marked (see :mod:`d2lps.messages.marked`). A displayed object is formatted once in
each language, since the layout of pictures and tables depends on the words: the other languages travel in the
metadata. Nothing else is done more than once. ``course/site/execute.py`` starts this and separates the languages.
"""

import os

from d2lps.messages import LANGUAGES, choose_all, language, only, unmarked

KEY = "d2lps"  # in the metadata of an output: language → its forms


def speak_to_all() -> None:
    """Speak all languages from now on, here and in all processes started from here; display the current language."""
    from ipykernel.comm.comm import BaseComm
    from IPython import get_ipython

    choose_all()
    os.environ["D2LPS_PROGRESS"] = "0"  # no reader watches while a cell runs
    shell = get_ipython()
    form, publish, send = shell.display_formatter.format, shell.display_pub.publish, BaseComm.publish_msg

    def form_all(value, include=None, exclude=None):
        if shell.display_formatter.ipython_display_formatter(value):  # it has displayed itself, with ``publish_all``
            return {}, {}

        def bundle(code: str) -> tuple[dict, dict]:
            return unmarked(only(code, lambda: form(value, include, exclude)), code)

        data, metadata = bundle(language())
        return data, metadata | {KEY: {code: bundle(code)[0] for code in LANGUAGES if code != language()}}

    def publish_all(data, metadata=None, **options):
        metadata = metadata or {}
        if KEY not in metadata:
            metadata = metadata | {KEY: {code: unmarked(data, code) for code in LANGUAGES if code != language()}}
        publish(unmarked(data, language()), metadata, **options)

    def send_one(
        comm, type_of_message, data=None, *rest, **options
    ):  # widgets need a kernel, so one language is enough
        send(comm, type_of_message, unmarked(data, language()), *rest, **options)

    shell.display_formatter.format, shell.display_pub.publish = form_all, publish_all
    BaseComm.publish_msg = send_one
