//! A layer as the copy of a live top.
