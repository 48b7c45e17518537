//! Into what pieces a dataset is cut for rotation: chunks, or where two of them do not fit, halves of them.
//!
//! Two pieces are the least that can rotate: one is read while the next is loaded. A rotation knows
//! pieces by number only, so one of halves is simply one of twice as many, half as large. A cut changes
//! when placement moves a budget across two chunks, which is seldom: whoever drives the rotation starts
//! another, and tells it what it finds.

/// How a dataset with a budget is cut for rotation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// Piece `i` is chunk `i`, and there is room for so many.
    Chunks(u32),
    /// Pieces `2i` and `2i + 1` are the halves of chunk `i`, and there is room for so many: two or three.
    Halves(u32),
    /// Not even two halves fit: nothing is cached, and every job reads through.
    Nothing,
}

impl Cut {
    /// The cut of a dataset of so many chunks that may use `space`, both in the same unit as `chunk_size`.
    pub fn new(chunks: u32, chunk_size: u64, space: u64) -> Self {
        let fit = |piece: u64, pieces: u32| {
            let fit = space.checked_div(piece).unwrap_or(u64::MAX);
            u32::try_from(fit).unwrap_or(u32::MAX).min(pieces)
        };
        match fit(chunk_size, chunks) {
            whole if whole >= 2 || whole == chunks => Self::Chunks(whole),
            _ => match fit(chunk_size.div_ceil(2), chunks.saturating_mul(2)) {
                halves if halves >= 2 => Self::Halves(halves),
                _ => Self::Nothing,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_pieces_rotate_or_none() {
        assert_eq!(Cut::new(10, 15, 700), Cut::Chunks(10));
        assert_eq!(Cut::new(10, 15, 44), Cut::Chunks(2));
        assert_eq!(Cut::new(10, 15, 29), Cut::Halves(3));
        assert_eq!(Cut::new(10, 15, 15), Cut::Nothing, "two halves of an odd number are more");
        assert_eq!(Cut::new(10, 16, 16), Cut::Halves(2));
        assert_eq!(Cut::new(10, 16, 15), Cut::Nothing);
        assert_eq!(Cut::new(1, 16, 16), Cut::Chunks(1), "all of it is there");
        assert_eq!(Cut::new(1, 16, 15), Cut::Nothing);
    }
}
