//! The native part of the Python package.
//!
//! Thin on purpose: parse, release the GIL, call, map errors to named exceptions. What decides is in
//! `core`, what speaks is in `client`; processes and loaders are Python's. Nothing here starts a thread
//! or reads an origin, so that a job's processes fork freely.

mod catalogue;
mod digest;
mod embed;
mod errors;
mod layout;
mod look_ahead;
mod member;
mod picks;
mod reader;
mod sampler;
mod view;

/// What `forebay/*.py` is built on; not for users.
#[pyo3::pymodule]
mod _native {
    #[pymodule_export]
    use crate::{
        catalogue::{Catalogue, namespace_id},
        digest::Digest,
        embed::Tables,
        errors::{
            AgentGone, ChangedError, DigestError, Fenced, ForebayError, ReadError, StateError,
            TableError,
        },
        layout::Layout,
        look_ahead::LookAhead,
        member::Member,
        picks::Picks,
        reader::{Reader, answers},
        sampler::Sampler,
        view::View,
    };
}
