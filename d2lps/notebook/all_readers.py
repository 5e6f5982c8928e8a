"""In the kernel of a notebook that is executed once for the readers of all languages.

What is printed, and what errors say, is marked (see :mod:`d2lps.messages.marked`). What is displayed is formed once in
each language, since pictures make room for words, and tables line them up: the forms of the others travel in the
metadata. Nothing but these forms is made more than once. ``execute`` starts this, and takes apart what comes of it.
"""

import os

from d2lps.messages import LANGUAGES, choose_all, language, only, unmarked

KEY = "d2lps"  # in the metadata of an output: language → what is shown in it


def speak_to_all() -> None:
    """From now on, and in all processes started from here. The language in force is that of whoever looks on."""
    from ipykernel.comm.comm import BaseComm
    from IPython import get_ipython

    choose_all()
    os.environ["D2LPS_PROGRESS"] = "0"  # what is said while a cell runs is for nobody
    shell = get_ipython()
    form, publish, tell = shell.display_formatter.format, shell.display_pub.publish, BaseComm.publish_msg

    def formed(value, include=None, exclude=None):
        if shell.display_formatter.ipython_display_formatter(value):  # it has displayed itself, by way of the others
            return {}, {}

        def bundle(each: str) -> tuple[dict, dict]:
            return unmarked(only(each, lambda: form(value, include, exclude)), each)

        data, metadata = bundle(language())
        return data, metadata | {KEY: {each: bundle(each)[0] for each in LANGUAGES if each != language()}}

    def published(data, metadata=None, **options):
        metadata = metadata or {}
        if KEY not in metadata:
            metadata = metadata | {KEY: {each: unmarked(data, each) for each in LANGUAGES if each != language()}}
        publish(unmarked(data, language()), metadata, **options)

    def told(comm, type_of_message, data=None, *rest, **options):  # a widget is seen by whoever looks on
        tell(comm, type_of_message, unmarked(data, language()), *rest, **options)

    shell.display_formatter.format, shell.display_pub.publish = formed, published
    BaseComm.publish_msg = told
