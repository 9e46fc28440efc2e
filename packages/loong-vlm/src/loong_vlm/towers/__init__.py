"""Vision towers: from pixel patches to features. Each registers by the entry-point group `loong.towers`."""
