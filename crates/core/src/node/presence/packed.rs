//! Ascending numbers in few bits: a Golomb-Rice code of the gaps between them.

use super::MalformedPresence;

/// Packs ascending numbers: the number of low bits per gap (1 byte), the count (4 bytes), then each
/// gap with its high part in unary and its low bits in binary. A gap of 1000 takes 1.5 bytes.
/// Returns `None` if the result would take `bytes_max` bytes or more.
pub fn pack(numbers: impl Iterator<Item = u32> + Clone, bytes_max: usize) -> Option<Vec<u8>> {
    let (count, last) = numbers.clone().fold((0_u32, 0), |(count, _), last| (count + 1, last));
    let mean = last / count.max(1);
    let low = mean.max(1).ilog2();
    // A lower bound of the length.
    if (u64::from(count) * u64::from(low + 1)).div_ceil(8) + 5 >= bytes_max as u64 && count > 0 {
        return None;
    }
    let mut packed = vec![u8::try_from(low).expect("below 32")];
    packed.extend(count.to_le_bytes());
    let (mut word, mut filled, mut next) = (0_u64, 0, 0);
    for number in numbers {
        let gap = number - next;
        next = number + 1;
        let (mut high, bits) = (gap >> low, u64::from(gap) & ((1 << low) - 1));
        while high >= 16 {
            word |= 0xffff << filled;
            (filled, high) = (filled + 16, high - 16);
            drain(&mut packed, &mut word, &mut filled);
        }
        // `high` ones, a zero, the low bits.
        word |= ((1 << high) - 1) << filled;
        word |= bits << (filled + high + 1);
        filled += high + 1 + low;
        drain(&mut packed, &mut word, &mut filled);
    }
    if filled > 0 {
        packed.push(word.to_le_bytes()[0]);
    }
    (packed.len() < bytes_max || count == 0).then_some(packed)
}

/// Writes out whole bytes.
fn drain(packed: &mut Vec<u8>, word: &mut u64, filled: &mut u32) {
    while *filled >= 8 {
        packed.push(word.to_le_bytes()[0]);
        *word >>= 8;
        *filled -= 8;
    }
}

/// Unpacks ascending numbers below `end`. Allocates at most what the input can encode.
pub fn unpack(packed: &[u8], end: u32) -> Result<Vec<u32>, MalformedPresence> {
    let (&low, rest) = packed.split_first().ok_or(MalformedPresence)?;
    let (count, bits) = rest.split_first_chunk::<4>().ok_or(MalformedPresence)?;
    let (low, count) = (u32::from(low), u32::from_le_bytes(*count));
    let available = bits.len() as u64 * 8;
    if low >= 32 || count > end || u64::from(count) * u64::from(low + 1) > available {
        return Err(MalformedPresence);
    }
    let mut at = 0_u64;
    let mut bit = || {
        let byte = usize::try_from(at / 8)
            .ok()
            .and_then(|byte| bits.get(byte))
            .ok_or(MalformedPresence)?;
        let bit = byte >> (at % 8) & 1;
        at += 1;
        Ok(u32::from(bit))
    };
    let mut numbers = Vec::with_capacity(count as usize);
    let mut next = 0_u32;
    for _ in 0..count {
        let mut high = 0_u32;
        while bit()? == 1 {
            high += 1;
        }
        let mut gap = u64::from(high) << low;
        for place in 0..low {
            gap |= u64::from(bit()?) << place;
        }
        let number = u64::from(next) + gap;
        let number =
            u32::try_from(number).ok().filter(|number| *number < end).ok_or(MalformedPresence)?;
        numbers.push(number);
        next = number + 1;
    }
    Ok(numbers)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_gap_of_1000_takes_1_5_bytes() {
        let numbers = (0..1000).map(|number| number * 1000);
        let packed = pack(numbers.clone(), usize::MAX).unwrap();
        assert!(packed.len() < 1500, "{}", packed.len());
        assert!(unpack(&packed, 1_000_000).unwrap().into_iter().eq(numbers));
        assert_eq!(pack(0..1000, 100), None, "longer than one bit per number");
        assert_eq!(unpack(&pack(0..0, 0).unwrap(), 0).unwrap(), [], "an empty set always fits");
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

        #[test]
        fn unpacking_inverts_packing(
            mut numbers in prop::collection::btree_set(0_u32..100_000, 0..300),
        ) {
            numbers.insert(99_999);
            let packed = pack(numbers.iter().copied(), usize::MAX).unwrap();
            let unpacked = unpack(&packed, 100_000).unwrap();
            prop_assert!(unpacked.iter().eq(&numbers));
        }
    }
}
