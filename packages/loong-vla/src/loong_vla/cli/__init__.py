"""The commands of `loong-vla`, one file each; heavy imports happen inside."""
