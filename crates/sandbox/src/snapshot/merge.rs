//! One layer out of several neighbours.
