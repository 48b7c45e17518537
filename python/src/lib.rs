//! The native module of the Python package: bindings of `core`, `client`, `digest`, `embeddings`
//! and `streams`.
//!
//! A binding parses arguments, releases the GIL, calls, and maps errors to named exceptions.
//! Decisions are in `core`, connections in `client`, processes and loaders in Python. Nothing but a
//! store of `stream` starts a thread, and nothing reads an origin, so a job's processes can fork
//! at any time.

mod by_address;
mod catalogue;
mod digest;
mod embeddings;
mod errors;
mod item_map;
mod job;
mod prefetch_window;
mod reader;
mod stream;
mod view;

/// The module `forebay._native`; not part of the public interface.
#[pyo3::pymodule]
mod _native {
    #[pymodule_export]
    use crate::{
        by_address::BlobsByAddress,
        catalogue::{Catalogue, namespace_id},
        digest::Digest,
        embeddings::Tables,
        errors::{
            AgentGone, ChangedError, DigestError, Fenced, ForebayError, ReadError, StateError,
            StoreFull, StreamError, StreamLost, TableError,
        },
        item_map::{ItemMap, global_share, split},
        job::Job,
        prefetch_window::PrefetchWindow,
        reader::{Reader, answers},
        stream::{
            Batch, StreamBlock, StreamColumn, StreamFamily, StreamReader, StreamStore, StreamWriter,
        },
        view::View,
    };
}
