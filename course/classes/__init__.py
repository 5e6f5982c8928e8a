"""Grading a class of notebooks: ``python -m course.classes FOLDER``.

Each answer runs in a process of its own, which decides nothing; a judge in another process calls it over a ``line``.
Start with ``judging``, which judges one notebook; ``running`` judges several at a time; ``__main__`` is the command,
with its options and their defaults: seconds and memory of an answer, which ``sandbox`` enforces.

* ``handed_in`` finds the learners' files, ``notebooks`` their answers, ``slices`` the statements that an answer needs;
* ``forkserver`` starts the processes of answers, and ``sandbox`` confines them with the system calls in ``landlock``;
* ``allowed`` is the table of the system calls that an answer may make, with which arguments;
* ``inside`` runs in the answer's process, ``answers`` in the judge's; ``values`` decides which data they may exchange;
* ``watch`` notes what an answer tries, ``alike`` which answers are copies;
* ``report`` writes class.csv and class.json, ``page`` the same as HTML, ``gradebook`` the points as gradebook.csv.
"""
