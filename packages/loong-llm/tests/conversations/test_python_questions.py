"""The quickstart's questions: real texts, and nothing held out is trained on."""

import json

from loong_llm.conversations.formats import detect, reader
from loong_llm.conversations.python_questions import python_questions, swapped, write_python_questions
from loong_llm.data.python_topics import python_topics


def test_there_are_enough_questions_on_both_sides():
    train, held_out = python_questions()
    assert len(train) > 800
    assert len(held_out) > 60
    assert len({question.question for question in train + held_out}) == len(train) + len(held_out)


def test_no_question_and_no_answer_stands_on_both_sides():
    train, held_out = python_questions()
    assert not {question.question for question in train} & {question.question for question in held_out}
    assert not {question.text for question in train} & {question.text for question in held_out}


def test_questions_about_a_topic_stand_on_the_side_that_pretraining_gave_it():
    topics, held_out_topics = python_topics()
    train, held_out = python_questions()
    assert not {question.about for question in train} & set(held_out_topics)
    assert not {question.about for question in held_out if question.text in " ".join(topics.values())} & set(topics)
    pretrained = " ".join(" ".join(text.split()) for text in topics.values())
    assert not [question.answer for question in held_out if question.text in pretrained and len(question.text) > 100]


def test_answers_are_the_references_own_words():
    train, held_out = python_questions()
    for question in train[:200] + held_out:
        assert question.answer.endswith(question.text)
    upper = next(question for question in train if question.question == "What does str.upper do?")
    assert upper.answer == "str.upper: Return a copy of the string converted to uppercase."


def test_swapped_questions_keep_their_places_and_get_other_answers():
    _, held_out = python_questions()
    other = swapped(held_out)
    assert [question.question for question in other] == [question.question for question in held_out]
    assert sorted(question.answer for question in other) == sorted(question.answer for question in held_out)
    assert all(a.answer != b.answer for a, b in zip(other, held_out, strict=True))


def test_files_hold_conversations_and_are_the_same_every_time(tmp_path):
    first, second = (write_python_questions(tmp_path / name) for name in ("a", "b"))
    assert first.train.read_bytes() == second.train.read_bytes()
    lines = first.held_out.read_text(encoding="utf-8").splitlines()
    record = json.loads(lines[0])
    assert detect(record) == "messages"
    assert reader("messages", {})(record).messages[1]["role"] == "assistant"
