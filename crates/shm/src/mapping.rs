//! The mapping itself, on both sides.

#![expect(unsafe_code, reason = "memory shared by two processes is outside Rust's aliasing rules")]

use std::{
    fs::{File, OpenOptions},
    io,
    mem::ManuallyDrop,
    ops::Deref,
    os::fd::{AsFd, AsRawFd as _, OwnedFd},
    process, slice,
    sync::Arc,
};

use forebay_core::{
    ByteSize,
    node::shm_slots::{NotGiven, Slot, Slots},
};
use memmap2::{Advice, MmapOptions, MmapRaw};
use parking_lot::Mutex;
use rustix::fs::{
    FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, fcntl_get_seals, fstat,
    ftruncate, memfd_create,
};

use crate::SIZE_MAX;

/// The node's side of a shm region. Dropped when the connection has ended and no slot is being
/// filled.
pub struct ShmRegion {
    map: MmapRaw,
    slots: Mutex<Slots>,
    /// `Some` until the region is dropped.
    detach: Option<(File, OnDetached)>,
}

/// Called when the node drops its side of a region.
type OnDetached = Box<dyn FnOnce(DetachedRegion) + Send + Sync>;

/// A slot that the node is filling. The client cannot see it until it is granted. If it is dropped
/// instead, the slot is free again.
pub struct SlotWriter {
    region: Arc<ShmRegion>,
    /// `Some` until the slot is granted.
    slot: Option<Slot>,
    length: u32,
}

/// Position of a granted slot in its region, and the length of the bytes in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotRange {
    /// Offset in the region, in bytes.
    pub offset: u32,
    /// Length in bytes.
    pub length: u32,
}

/// A region that the node has dropped. Its client may still have it mapped.
#[derive(Debug)]
pub struct DetachedRegion(File);

/// A region that is being made. Allocating 256 MiB takes a tenth of a second, so it can be done in
/// parts.
pub struct NewRegion {
    memfd: OwnedFd,
    map: MmapRaw,
    allocated: usize,
}

impl NewRegion {
    /// A region of `size` bytes, none of which is allocated.
    pub fn new(size: usize) -> io::Result<Self> {
        assert!((1..=SIZE_MAX).contains(&size), "a shm region of {size} bytes is over the limit");
        let memfd = memfd_create("forebay", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&memfd, size as u64)?;
        let map = MmapOptions::new().len(size).map_raw(&memfd)?;
        Ok(Self { memfd, map, allocated: 0 })
    }

    /// Allocates up to `bytes` more. Returns whether all are allocated.
    pub fn allocate(&mut self, bytes: usize) -> io::Result<bool> {
        let (start, size) = (self.allocated, self.map.len());
        let length = bytes.min(size - start);
        if length > 0 {
            // A page that could not be allocated later would raise SIGBUS instead of an error.
            fallocate(&self.memfd, FallocateFlags::empty(), start as u64, length as u64)?;
            // Without it the first write to each page would fault. Older kernels do not have it.
            let _ = self.map.advise_range(Advice::PopulateWrite, start, length);
        }
        self.allocated += length;
        Ok(self.allocated == size)
    }

    /// The region, and a descriptor of it for the client.
    ///
    /// # Panics
    /// If not all of it is allocated.
    pub fn finish(
        self,
        on_detached: impl FnOnce(DetachedRegion) + Send + Sync + 'static,
    ) -> io::Result<(Arc<ShmRegion>, OwnedFd)> {
        let Self { memfd, map, allocated } = self;
        let size = map.len();
        assert_eq!(allocated, size, "a region is granted when it is allocated");
        // From here on no other process can write to it, change its size or remove the seals.
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE | SealFlags::SEAL;
        fcntl_add_seals(&memfd, seals)?;
        // Each descriptor is opened again, to count as a reader or writer (see `DetachedRegion`).
        let path = format!("/proc/self/fd/{}", memfd.as_raw_fd());
        let file = OpenOptions::new().read(true).write(true).open(&path)?;
        let for_client = File::open(&path)?;
        let slots = Mutex::new(Slots::new(ByteSize(size as u64)));
        let on_detached: OnDetached = Box::new(on_detached);
        let region = ShmRegion { map, slots, detach: Some((file, on_detached)) };
        Ok((Arc::new(region), for_client.into()))
    }
}

impl ShmRegion {
    /// Allocates a region of `size` bytes at once, and a descriptor of it for the client.
    pub fn new(
        size: usize,
        on_detached: impl FnOnce(DetachedRegion) + Send + Sync + 'static,
    ) -> io::Result<(Arc<Self>, OwnedFd)> {
        let mut region = NewRegion::new(size)?;
        region.allocate(size)?;
        region.finish(on_detached)
    }

    /// Size in bytes.
    pub fn size(&self) -> usize {
        self.map.len()
    }

    /// Takes a slot of `length` bytes, if one is free.
    pub fn take_slot(self: &Arc<Self>, length: u32) -> Option<SlotWriter> {
        let slot = self.slots.lock().take(length)?;
        Some(SlotWriter { region: Arc::clone(self), slot: Some(slot), length })
    }

    /// Frees slots that the client has released. The error names the first that was not granted.
    pub fn release(&self, offsets: &[u32]) -> Result<(), NotGiven> {
        let mut slots = self.slots.lock();
        offsets.iter().try_for_each(|offset| slots.release(*offset))
    }

    /// Bytes of all slots that are being filled or granted.
    pub fn taken(&self) -> u64 {
        self.slots.lock().taken()
    }
}

impl Drop for ShmRegion {
    fn drop(&mut self) {
        if let Some((file, on_detached)) = self.detach.take() {
            on_detached(DetachedRegion(file));
        }
    }
}

impl SlotWriter {
    /// Writes bytes at offset `at` of the slot.
    pub fn write(&mut self, at: usize, bytes: &[u8]) {
        let slot = self.slot.as_ref().expect("not granted yet");
        let end = at.checked_add(bytes.len()).expect("bytes are in memory");
        assert!(end <= self.length as usize, "{end} bytes in a slot of {}", self.length);
        // SAFETY: the slot lies within the mapping, and `end` within the slot. The mapping is
        // writable and lives as long as the region, which `self` holds. No other `SlotWriter` has
        // any of these bytes (`Slots` hands each out once), this one is borrowed exclusively, and
        // this process never reads them, so `bytes` cannot overlap them. The client reads the slot
        // only after a message on the socket has granted it.
        unsafe {
            let to = self.region.map.as_mut_ptr().add(slot.offset() as usize + at);
            to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        }
    }

    /// Grants the slot to the client, which must be sent the returned range.
    pub fn grant(mut self) -> SlotRange {
        let slot = self.slot.take().expect("granted once");
        let offset = slot.offset();
        self.region.slots.lock().give(slot);
        SlotRange { offset, length: self.length }
    }
}

impl Drop for SlotWriter {
    fn drop(&mut self) {
        if let Some(slot) = self.slot.take() {
            self.region.slots.lock().give_back(slot);
        }
    }
}

impl DetachedRegion {
    /// Whether the client has unmapped the region, so that its memory is free.
    ///
    /// The kernel grants a write lease only while no other process has the file open or mapped.
    /// This descriptor is the only one that counts as a writer's; the client's counts as a
    /// reader's. Where the system has no leases the region counts as free.
    pub fn is_free(&self) -> bool {
        let set_lease = |kind: i32| {
            // SAFETY: the descriptor is open, and this command takes a number and touches no
            // memory.
            let result = unsafe { libc::fcntl(self.0.as_raw_fd(), libc::F_SETLEASE, kind) };
            if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
        };
        match set_lease(libc::F_WRLCK) {
            Ok(()) => set_lease(libc::F_UNLCK).is_ok(),
            Err(error) => error.raw_os_error() != Some(libc::EAGAIN),
        }
    }
}

/// The client's side of a shm region: a read-only mapping.
#[derive(Debug)]
pub struct ShmMapping {
    map: ManuallyDrop<MmapRaw>,
    /// The process that mapped it. A forked child has neither the memory nor the slots.
    process: u32,
    /// Offsets of slots whose views were dropped, not yet reported to the node.
    released: Mutex<Vec<u32>>,
}

/// Bytes of one slot. Dropping the view releases the slot.
///
/// A view belongs to the process that received it. A forked child has no access to the memory,
/// because its parent may release the slot at any time: copy the bytes before a fork.
#[derive(Debug)]
pub struct SlotView {
    mapping: Arc<ShmMapping>,
    offset: u32,
    length: u32,
}

impl ShmMapping {
    /// Maps the region that the node has passed, if it has the stated size and can never shrink.
    pub fn open(descriptor: impl AsFd, size: usize) -> io::Result<Arc<Self>> {
        let invalid = |text| Err(io::Error::new(io::ErrorKind::InvalidData, text));
        let seals = fcntl_get_seals(&descriptor)?;
        if !seals.contains(SealFlags::SHRINK | SealFlags::FUTURE_WRITE) {
            return invalid("the shm region is not sealed");
        }
        let length = u64::try_from(fstat(&descriptor)?.st_size).unwrap_or(0);
        if !(1..=SIZE_MAX).contains(&size) || length != size as u64 {
            return invalid("the shm region does not have the size that the node stated");
        }
        let descriptor = descriptor.as_fd().as_raw_fd();
        let map = MmapOptions::new().len(size).populate().map_raw_read_only(descriptor)?;
        // Otherwise a forked child would keep the memory until it exits.
        map.advise(Advice::DontFork)?;
        let (map, released) = (ManuallyDrop::new(map), Mutex::default());
        Ok(Arc::new(Self { map, process: process::id(), released }))
    }

    /// The bytes of a slot that the node has granted. `None` if the range leaves the region.
    pub fn view(self: &Arc<Self>, offset: u32, length: u32) -> Option<SlotView> {
        let end = offset.checked_add(length)?;
        let mapping = (end as usize <= self.map.len()).then(|| Arc::clone(self))?;
        Some(SlotView { mapping, offset, length })
    }

    /// Takes the offsets of released slots for a message to the node, `max` at most.
    pub fn take_released(&self, max: usize) -> Vec<u32> {
        let mut released = self.released.lock();
        if released.len() <= max {
            return std::mem::take(&mut *released);
        }
        let kept = released.len() - max;
        released.split_off(kept)
    }

    fn is_ours(&self) -> bool {
        self.process == process::id()
    }
}

impl Drop for ShmMapping {
    fn drop(&mut self) {
        if self.is_ours() {
            // SAFETY: the map is dropped once, here. A forked child has nothing to unmap, and
            // another mapping may be at these addresses there.
            unsafe { ManuallyDrop::drop(&mut self.map) };
        }
    }
}

impl Deref for SlotView {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        assert!(
            self.mapping.is_ours(),
            "a view belongs to the process that read it; copy it before a fork"
        );
        // SAFETY: the range was checked against the mapping, which lives as long as `self.mapping`
        // and is mapped in this process. Its pages were allocated by the node, and the seals keep
        // them allocated. The node wrote the bytes before it granted the slot, and does not write
        // there again before it receives the release that follows the drop of this view. No other
        // process can write at all. This trusts the node, as the client does for every reply.
        unsafe {
            slice::from_raw_parts(
                self.mapping.map.as_ptr().add(self.offset as usize),
                self.length as usize,
            )
        }
    }
}

impl Drop for SlotView {
    fn drop(&mut self) {
        // A forked child has copies of its parent's views, and must not release their slots.
        if self.mapping.is_ours() {
            self.mapping.released.lock().push(self.offset);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{io::Write as _, os::unix::net::UnixStream};

    use super::*;
    use crate::{receive_with_fd, send_with_fd};

    const SIZE: usize = 1 << 20;

    fn region_and_mapping() -> (Arc<ShmRegion>, Arc<ShmMapping>) {
        let (region, fd) = ShmRegion::new(SIZE, drop).unwrap();
        (region, ShmMapping::open(fd, SIZE).unwrap())
    }

    #[test]
    fn a_granted_slot_is_readable_until_its_view_is_dropped() {
        let (region, mapping) = region_and_mapping();
        let mut slot = region.take_slot(5000).unwrap();
        slot.write(0, &[7; 4000]);
        slot.write(4000, &[8; 1000]);
        let SlotRange { offset, length } = slot.grant();
        let view = mapping.view(offset, length).unwrap();
        assert_eq!((&view[..4000], &view[4000..]), (&[7; 4000][..], &[8; 1000][..]));
        assert!(region.taken() == 8192 && mapping.take_released(9).is_empty());
        let (read, mapping) = std::thread::spawn(move || (view.to_vec(), mapping)).join().unwrap();
        assert_eq!(read.len(), 5000);
        assert_eq!(region.release(&mapping.take_released(9)), Ok(()));
        assert_eq!(region.taken(), 0);
        drop(region.take_slot(1).unwrap());
        assert_eq!(region.taken(), 0, "a slot that was not granted is free again");
        assert!(mapping.view(u32::MAX, 2).is_none() && mapping.view(1 << 20, 1).is_none());
    }

    /// No process can change the size, and only the node can write.
    #[test]
    fn the_region_is_sealed() {
        let (region, fd) = ShmRegion::new(SIZE, drop).unwrap();
        let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
        let mut forced = OpenOptions::new().read(true).write(true).open(path).unwrap();
        assert!(forced.set_len(10).is_err() && forced.set_len(2 << 20).is_err());
        assert!(forced.write_all(b"scribble").is_err());
        assert!(MmapOptions::new().len(SIZE).map_raw(&forced).is_err());
        assert!(
            fallocate(&forced, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, 4096)
                .is_err()
        );
        assert!(region.take_slot(1).is_some());
        let other = memfd_create("other", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&other, SIZE as u64).unwrap();
        assert!(ShmMapping::open(&other, SIZE).is_err(), "not sealed");
        assert!(ShmMapping::open(&fd, SIZE + 1).is_err(), "another size");
    }

    #[test]
    fn a_detached_region_is_free_when_the_client_has_unmapped_it() {
        let (sender, detached) = std::sync::mpsc::channel();
        let on_detached = move |region| sender.send(region).unwrap();
        let (region, fd) = ShmRegion::new(SIZE, on_detached).unwrap();
        let mapping = ShmMapping::open(&fd, SIZE).unwrap();
        let view = mapping.view(0, 10).unwrap();
        let slot = region.take_slot(1);
        drop(region);
        assert!(detached.try_recv().is_err(), "a slot is being filled");
        drop(slot);
        let detached = detached.recv().unwrap();
        drop((fd, mapping));
        assert!(!detached.is_free(), "a view exists");
        drop(view);
        assert!(detached.is_free() && detached.is_free());
    }

    /// A forked child has copies of its parent's views. It must neither release their slots nor
    /// read bytes that may have changed.
    #[test]
    fn a_forked_child_neither_reads_nor_releases() {
        let (region, mapping) = region_and_mapping();
        let mut slot = region.take_slot(100).unwrap();
        slot.write(0, &[5; 100]);
        let SlotRange { offset, length } = slot.grant();
        let view = mapping.view(offset, length).unwrap();
        // SAFETY: the child calls nothing that needs a lock held by another thread at the fork.
        let child = unsafe { libc::fork() };
        if child == 0 {
            std::panic::set_hook(Box::new(|_| {}));
            let reads = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| view[0])).is_ok();
            drop(view);
            let has_released = !mapping.released.lock().is_empty();
            drop(mapping);
            // SAFETY: the call ends the process and touches no memory.
            unsafe { libc::_exit(i32::from(reads || has_released)) };
        }
        let mut status = 0;
        // SAFETY: `status` outlives the call.
        let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!((waited, status), (child, 0));
        assert!(view[..] == [5; 100] && mapping.take_released(9).is_empty());
        drop(view);
        assert_eq!(mapping.take_released(9), [offset]);
    }

    #[test]
    fn a_region_is_passed_over_a_socket() {
        let (region, fd) = ShmRegion::new(SIZE, drop).unwrap();
        let (node, client) = UnixStream::pair().unwrap();
        assert_eq!(send_with_fd(&node, b"frame", fd.as_fd()).unwrap(), 5);
        let mut bytes = [0; 9];
        let (count, descriptor) = receive_with_fd(&client, &mut bytes).unwrap();
        let mapping = ShmMapping::open(descriptor.unwrap(), SIZE).unwrap();
        let mut slot = region.take_slot(3).unwrap();
        slot.write(0, b"abc");
        let SlotRange { offset, length } = slot.grant();
        assert_eq!(
            (&bytes[..count], &mapping.view(offset, length).unwrap()[..]),
            (&b"frame"[..], &b"abc"[..])
        );
        (&node).write_all(b"x").unwrap();
        assert!(receive_with_fd(&client, &mut bytes).unwrap().1.is_none());
    }
}
