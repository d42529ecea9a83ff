//! What differs between two chains.
