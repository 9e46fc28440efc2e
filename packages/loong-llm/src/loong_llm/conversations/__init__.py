"""Conversations: from files of any known form, by a chat template, to packed sequences with their trained tokens."""

from loong_llm.conversations.corpus import (
    ConversationCorpus,
    ConversationSettings,
    ConversationSource,
    conversation_faults,
    open_conversations,
    prepare_source,
)
from loong_llm.conversations.encoding import ConversationEncoder, RenderSettings
from loong_llm.conversations.messages import BadSample, Conversation, conversation

__all__ = [
    "BadSample",
    "Conversation",
    "ConversationCorpus",
    "ConversationEncoder",
    "ConversationSettings",
    "ConversationSource",
    "RenderSettings",
    "conversation",
    "conversation_faults",
    "open_conversations",
    "prepare_source",
]
