//! Ascending numbers in few bits: a Golomb-Rice code of the gaps between them.

use super::Nonsense;

/// Packs ascending numbers: how many low bits of each gap are written as they are (a byte), how many numbers
/// there are (four), and then each gap, its high part in unary (a Golomb-Rice code: one and a half bytes for a
/// gap of a thousand). Nothing, if that takes as much as `bytes_max`.
pub fn pack(numbers: impl Iterator<Item = u32> + Clone, bytes_max: usize) -> Option<Vec<u8>> {
    let (count, last) = numbers.clone().fold((0_u32, 0), |(count, _), last| (count + 1, last));
    let mean = last / count.max(1);
    let low = mean.max(1).ilog2();
    // What is surely too long need not be tried.
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
        // As many ones, a nought, the low bits.
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

/// Writes out what is whole bytes.
fn drain(packed: &mut Vec<u8>, word: &mut u64, filled: &mut u32) {
    while *filled >= 8 {
        packed.push(word.to_le_bytes()[0]);
        *word >>= 8;
        *filled -= 8;
    }
}

/// Numbers below `end`, ascending. Nothing is allocated that is not there.
pub fn unpack(packed: &[u8], end: u32) -> Result<Vec<u32>, Nonsense> {
    let (&low, rest) = packed.split_first().ok_or(Nonsense)?;
    let (count, bits) = rest.split_first_chunk::<4>().ok_or(Nonsense)?;
    let (low, count) = (u32::from(low), u32::from_le_bytes(*count));
    let there = bits.len() as u64 * 8;
    if low >= 32 || count > end || u64::from(count) * u64::from(low + 1) > there {
        return Err(Nonsense);
    }
    let mut at = 0_u64;
    let mut bit = || {
        let byte = usize::try_from(at / 8).ok().and_then(|byte| bits.get(byte)).ok_or(Nonsense)?;
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
        let number = u32::try_from(number).ok().filter(|number| *number < end).ok_or(Nonsense)?;
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
    fn gaps_of_a_thousand_take_a_byte_and_a_half() {
        let numbers = (0..1000).map(|number| number * 1000);
        let packed = pack(numbers.clone(), usize::MAX).unwrap();
        assert!(packed.len() < 1500, "{}", packed.len());
        assert!(unpack(&packed, 1_000_000).unwrap().into_iter().eq(numbers));
        assert_eq!(pack(0..1000, 100), None, "longer than a bit for each");
        assert_eq!(unpack(&pack(0..0, 0).unwrap(), 0).unwrap(), [], "nothing can always be said");
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

        #[test]
        fn packing_loses_nothing(mut numbers in prop::collection::btree_set(0_u32..100_000, 0..300)) {
            numbers.insert(99_999);
            let packed = pack(numbers.iter().copied(), usize::MAX).unwrap();
            let unpacked = unpack(&packed, 100_000).unwrap();
            prop_assert!(unpacked.iter().eq(&numbers));
        }
    }
}
