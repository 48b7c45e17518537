//! Families: streams of one lifetime that share regions, such as the spills of one query.
//!
//! A region belongs to one family. A thousand short streams in one family fill regions together;
//! each in a family of its own would take a region each.

use std::sync::Arc;

use forebay_core::streams::{FamilyId, Lifetime};

use crate::{
    block_on::block_on,
    error::StreamError,
    of_process::OfProcess,
    owned_writer::OwnedWriter,
    shared::Shared,
    writer::{FullPolicy, Writer},
};

/// A family of streams. It lives until it is destroyed; with the lifetime `Process`, at most until
/// its store is closed.
#[derive(Clone)]
pub struct Family {
    pub(crate) shared: OfProcess<Arc<Shared>>,
    pub(crate) id: FamilyId,
    pub(crate) lifetime: Lifetime,
}

impl Family {
    /// Creates a stream in this family.
    pub fn create(&self, name: &str, full: FullPolicy) -> Result<Writer, StreamError> {
        self.shared.check_process()?;
        OwnedWriter::create(&self.shared, name, self.id, full).map(Writer::from)
    }

    /// The lifetime of its streams.
    pub fn lifetime(&self) -> Lifetime {
        self.lifetime
    }

    /// Destroys all streams of the family in one step. Their readers get an error.
    pub fn destroy(self) -> Result<(), StreamError> {
        block_on(self.destroy_async())
    }

    /// [`Family::destroy`] as a future.
    pub async fn destroy_async(self) -> Result<(), StreamError> {
        self.shared.check_process()?;
        self.shared.destroy_family(self.id).await
    }
}
