"""The small GPT: its cuts, its causality, its data, and that it learns."""

import pytest
import torch

from d2lps import train
from d2lps.train.gpt import GPT, GptError, examples, loss, prose


@pytest.mark.parametrize("cuts", [1, 2, 3, 4, [1, 1, 2], [3, 1]])
def test_stages_in_a_row_are_the_model(cuts):
    net, (inputs, _) = GPT(2, 16, 2, 8), examples(prose("vi"), 3, 8)
    x = inputs
    for stage in net.stages(cuts):
        x = stage(x)
    assert torch.equal(x, net(inputs))
    names = {id(p) for stage in net.stages(cuts) for p in stage.parameters()}
    assert names == {id(p) for p in net.parameters()}


@pytest.mark.parametrize("cuts", [0, 5, [], [4, 0], [1, 1], [-1, 5]])
def test_cuts_that_do_not_fit_are_refused(cuts):
    with pytest.raises(GptError, match="4 modules cannot be cut"):
        GPT(2, 16, 2, 8).stages(cuts)


def test_an_output_does_not_see_later_bytes():
    net, (inputs, _) = GPT(2, 16, 2, 8), examples(prose("zh"), 1, 8)
    changed = inputs.clone()
    changed[0, 5] = (changed[0, 5] + 1) % 256
    before, after = net(inputs), net(changed)
    assert torch.equal(before[:, :5], after[:, :5])
    assert not torch.equal(before[:, 5:], after[:, 5:])


@pytest.mark.parametrize("language", ["en", "vi", "zh"])
def test_labels_are_the_next_bytes_of_real_prose(language):
    source = prose(language)
    inputs, labels = examples(source, 5, 32, seed=3)
    assert torch.equal(inputs[:, 1:], labels[:, :-1])
    for row, label in zip(inputs.tolist(), labels.tolist(), strict=True):
        assert bytes([*row, label[-1]]) in source
    assert torch.equal(inputs, examples(source, 5, 32, seed=3)[0])
    assert not torch.equal(inputs, examples(source, 5, 32, seed=4)[0])


def test_it_learns():
    torch.manual_seed(0)
    net, source = GPT(2, 32, 4, 32), prose("en")
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
    losses = []
    for step in range(60):
        inputs, labels = examples(source, 16, 32, seed=step)
        optimizer.zero_grad()
        value = loss(net(inputs), labels)
        value.backward()
        optimizer.step()
        losses.append(value.item())
    assert losses[0] > 5 and sum(losses[-5:]) / 5 < 3.6  # how far it comes depends on the prose, which grows


def test_bad_input_is_refused():
    with pytest.raises(GptError, match="width of 10 cannot be shared by 3 heads"):
        GPT(width=10, heads=3)
    with pytest.raises(GptError, match="'fr' is no language"):
        prose("fr")
    with pytest.raises(GptError, match="3 bytes, too few"):
        examples(b"abc", 1, 3)


def test_a_package_without_the_course_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr(train.gpt, "CHAPTERS", tmp_path)
    with pytest.raises(GptError, match="comes with the course's repository"):
        prose("en")
