//! Every bound of a trajectory, by name. Reaching one while reading is an error that names it.

/// The largest JSON document, and the longest line of a file with one value a line. Such files themselves may be
/// of any size: they are read line by line.
pub const DOCUMENT_BYTES_MAX: usize = 64 * 1024 * 1024;
/// The most values (numbers, texts, lists, objects) in one document. A small text can hold very many.
pub const VALUES_MAX: u64 = 4 * 1024 * 1024;
/// The most steps of one trajectory, and the most events of a log that becomes one.
pub const STEPS_MAX: usize = 100_000;
/// The most rules of a trajectory, beside the built-in ones.
pub const RULES_MAX: usize = 100;
/// The longest pattern of a rule.
pub const PATTERN_BYTES_MAX: usize = 4 * 1024;
/// The most memory that one pattern may take when it is compiled.
pub const PATTERN_COMPILED_BYTES_MAX: usize = 1024 * 1024;
/// The most places of one text that rules may ignore; a text with more is compared as it is.
pub const PLACES_MAX: usize = 1_000_000;
/// The most problems of one trajectory that are told; further ones are only counted.
pub const PROBLEMS_MAX: usize = 100;
/// The most lines on each side that are compared line by line, after what is the same at both ends was set aside.
pub const DIFF_LINES_MAX: usize = 2_000;
/// The most that is shown of a difference.
pub const DIFF_BYTES_MAX: usize = 64 * 1024;
/// The most that is shown of one line of it, and of an ignored place.
pub const DIFF_LINE_BYTES_MAX: usize = 500;
/// The most differences of one step that are told.
pub const DIFFERENCES_MAX: usize = 100;
