"""Chat templates: Jinja texts shipped by name, and the sandbox in which any template is rendered."""

from loong_llm.chat_templates.registry import ALIASES, ChatTemplate, named_template, template_names
from loong_llm.chat_templates.sandbox import CompiledTemplate, Rendering, TemplateRefusal

__all__ = [
    "ALIASES",
    "ChatTemplate",
    "CompiledTemplate",
    "Rendering",
    "TemplateRefusal",
    "named_template",
    "template_names",
]
