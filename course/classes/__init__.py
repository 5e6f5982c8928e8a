"""A class of notebooks: ``python -m course.classes FOLDER``.

An answer runs in a process of its own, which computes and decides nothing; the judge in another one calls it over a
``line``. ``notebooks`` finds the learners and their cells, ``slices`` what of a notebook an answer needs; ``nursery``
starts a process for each answer, shut in by ``sandbox`` and ``walls``; ``inside`` runs there. What passes between the
two is data of a few kinds: ``values`` says which. ``answers`` is the judge's end, ``judging`` judges one notebook,
``running`` several at a time; ``report`` and ``page`` tell the teacher, ``__main__`` reads the command line.
"""
