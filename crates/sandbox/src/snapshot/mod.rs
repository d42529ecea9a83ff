//! State: layers, and what is made of them.
//!
//! A box's root is a chain of read-only layers with one writable top. To *restack* is to mount another chain with a fresh
//! top in the box's mount namespace and to pivot to it; the box's first process lives on. Everything else is a use
//! of it:
//!
//! ```text
//!  snapshot, nothing runs   top becomes a layer ─▶ restack on [it, chain…]        method `rotate`
//!  snapshot, something runs freeze, clone the top into a layer, thaw               method `reflink` or `copy`
//!  reset                    kill all but PID 1 ─▶ restack on the chain it began with
//!  restore                  the same, on the chain of a snapshot
//!  fork                     snapshot, then create on its chain
//!  stop, start              end the guest, keep the top; build again around it
//! ```
//!
//! | file | what it does |
//! |---|---|
//! | `layers` | the store: which layers there are, who refers to them, what nobody refers to |
//! | `index` | what one layer holds, with the hash of every content, in a file that is read in parts |
//! | `digest` | one number for the merged view of a chain |
//! | `diff` | what differs between two chains |
//! | `copy` | a layer as the copy of a live top |
//! | `merge` | one layer out of several neighbours, so that chains stay short |
//!
//! A layer on disk is what overlayfs made of it: a file that is there, a *whiteout* (a character device 0:0) for a
//! name that is not there any more, and a directory that is *opaque* (an attribute) when nothing below shows
//! through it, or *redirected* (an attribute, only with privilege) when it was moved.
//! Everything in a layer was written by a box: it is read by descriptor, no link is followed, and nothing but
//! regular files and directories is opened.

pub(crate) mod copy;
pub(crate) mod diff;
pub(crate) mod digest;
pub(crate) mod index;
pub(crate) mod layers;
pub(crate) mod merge;
pub(crate) mod records;

/// Where overlayfs keeps its own attributes in the layers of a home.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Marks {
    /// `trusted.overlay.*`: mounts with privilege.
    Trusted,
    /// `user.overlay.*`: mounts without.
    User,
}

impl Marks {
    /// The beginning of the attributes' names.
    pub(crate) fn prefix(self) -> &'static str {
        match self {
            Marks::Trusted => "trusted.overlay.",
            Marks::User => "user.overlay.",
        }
    }
}

/// Makes a layer of a live top that stands still, by copying it.
pub(crate) fn copy_top(
    _home: &crate::home::Home,
    _id: &str,
    _upper: &std::path::Path,
    _layer: &str,
) -> crate::error::Result<records::Method> {
    Err(crate::error::Error::new(
        crate::error::ErrorKind::Unsupported,
        "a busy box cannot be snapshotted yet",
    ))
}
