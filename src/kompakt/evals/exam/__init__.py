"""The exam: what a reader who has only a compacted context can still answer."""

from kompakt.evals.exam.contexts import CONDITIONS
from kompakt.evals.exam.questions import ExamCase, ExamQuestion, read_exam
from kompakt.evals.exam.rounds import ExamRound, ExamSettings
from kompakt.evals.exam.scores import ExamScores

__all__ = ["CONDITIONS", "ExamCase", "ExamQuestion", "ExamRound", "ExamScores", "ExamSettings", "read_exam"]
