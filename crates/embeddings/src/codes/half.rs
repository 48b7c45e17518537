//! Numbers of 16 bits: IEEE half precision and bfloat16, rounded to nearest, ties to even.
//!
//! Conversions are integer arithmetic without branches, so that a loop of them becomes SIMD
//! instructions.

/// Writes each number as 16 bits.
#[expect(clippy::inline_always, reason = "its caller decides for which CPU it is compiled")]
#[inline(always)]
pub(super) fn encode(row: &[f32], out: &mut [u8], convert: impl Fn(f32) -> u16) {
    for (bytes, number) in out.as_chunks_mut::<2>().0.iter_mut().zip(row) {
        *bytes = convert(*number).to_le_bytes();
    }
}

/// Reads numbers of 16 bits.
#[expect(clippy::inline_always, reason = "its caller decides for which CPU it is compiled")]
#[inline(always)]
pub(super) fn decode(
    bytes: &[u8],
    out: &mut [f32],
    convert: impl Fn(u16) -> f32,
    put: impl Fn(&mut f32, f32),
) {
    for (at, bytes) in out.iter_mut().zip(bytes.as_chunks::<2>().0) {
        put(at, convert(u16::from_le_bytes(*bytes)));
    }
}

/// 2^112: the difference between the exponents of both formats.
const SCALE_UP: f32 = f32::from_bits((127 + 112) << 23);

/// To half precision. What is too large becomes infinity; NaN stays NaN.
#[inline]
pub(super) fn to_f16(number: f32) -> u16 {
    let bits = number.to_bits();
    let sign = (bits >> 16) & 0x8000;
    let magnitude = bits & 0x7fff_ffff;
    // Numbers below 2^-14 have fewer digits. Adding 1/2 aligns their digits with its lowest ones,
    // and the addition rounds.
    let small = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0.5_f32.to_bits());
    let odd = (magnitude >> 13) & 1;
    let normal = (magnitude.wrapping_add(0xfff + odd) >> 13).wrapping_sub(112 << 10);
    let half = if magnitude < 113 << 23 { small } else { normal };
    // 65,520 is the smallest number that rounds to infinity.
    let half = if magnitude >= 65_520.0_f32.to_bits() { 0x7c00 } else { half };
    let half = if magnitude > 0x7f80_0000 { 0x7e00 | ((magnitude >> 13) & 0x3ff) } else { half };
    (sign | half) as u16
}

/// From half precision, exactly.
#[inline]
pub(super) fn from_f16(half: u16) -> f32 {
    let sign = u32::from(half & 0x8000) << 16;
    let magnitude = u32::from(half & 0x7fff);
    // Shifted into place, the exponent is too small by 112; subnormal halves are normal singles.
    let finite = f32::from_bits(magnitude << 13) * SCALE_UP;
    let special = f32::from_bits(0x7f80_0000 | magnitude << 13);
    let number = if magnitude >= 0x7c00 { special } else { finite };
    f32::from_bits(sign | number.to_bits())
}

/// To bfloat16. NaN stays NaN.
#[inline]
pub(super) fn to_bf16(number: f32) -> u16 {
    let bits = number.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
    let quiet = (bits >> 16) | 0x40;
    (if number.is_nan() { quiet } else { rounded }) as u16
}

/// From bfloat16, exactly.
#[inline]
pub(super) fn from_bf16(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}
