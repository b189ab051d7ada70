"""An M-ary tree learned together with the representation."""
