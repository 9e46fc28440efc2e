"""Vision-language models: towers, projectors, composition, image and video data, and the loong-vlm command."""
