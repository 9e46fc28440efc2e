"""Conversations that several tests share, in OpenAI's form."""

MULTI_TURN = [
    {"role": "user", "content": "Hello"},
    {"role": "assistant", "content": "Hi there."},
    {"role": "user", "content": "Two plus two?"},
    {"role": "assistant", "content": "Four, naïvely."},
]

SYSTEM = [{"role": "system", "content": "Be brief."}, *MULTI_TURN]

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather in a place.",
            "parameters": {"type": "object", "properties": {"place": {"type": "string"}, "days": {"type": "integer"}}},
        },
    }
]

_CALL = {
    "type": "function",
    "id": "call00001",
    "function": {"name": "weather", "arguments": {"place": "Bern", "days": 2}},
}

TOOL_CALL = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Will it rain in Bern?"},
    {"role": "assistant", "content": "", "tool_calls": [_CALL]},
    {"role": "tool", "content": "rain", "tool_call_id": "call00001"},
    {"role": "assistant", "content": "Yes."},
    {"role": "user", "content": "Thanks"},
    {"role": "assistant", "content": "Bye."},
]
