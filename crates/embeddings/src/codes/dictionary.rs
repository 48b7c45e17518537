//! Static dictionaries of `EVStore` (dissertation, 6.3), kept to compare with.
//!
//! They assume numbers between -1 and 1; what is outside is moved to the nearest end. NaN becomes
//! 0, so that its row has the error infinity.

/// Largest magnitude code of `ev16`: 2 x 32767 + 1 fills 16 bits.
const EV16_STEPS: f32 = 32_767.0;

/// Steps of `ev8` on either side of 0: -1 is 0, 0 is 127, 1 is 254, and 0.23 is 156.
const EV8_STEPS: f32 = 127.0;

/// Magnitudes of `ev4`: 0, and the seven positive values of posit<4,1> divided by 16. Four of them
/// are within 0.0625, the dense region of the text, which prints no table.
const EV4: [f32; 8] =
    [0.0, 1.0 / 256.0, 1.0 / 64.0, 1.0 / 32.0, 1.0 / 16.0, 1.0 / 8.0, 1.0 / 4.0, 1.0];

/// All values of `ev4`: bit 3 is the sign.
const EV4_VALUES: [f32; 16] = {
    let mut values = [0.0; 16];
    let mut at = 0;
    while at < 8 {
        values[at] = EV4[at];
        values[at + 8] = -EV4[at];
        at += 1;
    }
    values
};

/// To 16 bits: the magnitude, and in the last bit the sign.
#[inline]
pub(super) fn to_ev16(number: f32) -> u16 {
    let magnitude = (number.abs().min(1.0) * EV16_STEPS).round_ties_even() as u16;
    magnitude << 1 | u16::from(number < 0.0)
}

#[inline]
pub(super) fn from_ev16(code: u16) -> f32 {
    let magnitude = f32::from(code >> 1) / EV16_STEPS;
    if code & 1 == 1 { -magnitude } else { magnitude }
}

#[expect(clippy::inline_always, reason = "its caller decides for which CPU it is compiled")]
#[inline(always)]
pub(super) fn encode_ev8(row: &[f32], out: &mut [u8]) {
    for (code, number) in out.iter_mut().zip(row) {
        let number = if number.is_nan() { 0.0 } else { number.clamp(-1.0, 1.0) };
        *code = ((number + 1.0) * EV8_STEPS).round_ties_even() as u8;
    }
}

#[expect(clippy::inline_always, reason = "its caller decides for which CPU it is compiled")]
#[inline(always)]
pub(super) fn decode_ev8(bytes: &[u8], out: &mut [f32], put: impl Fn(&mut f32, f32)) {
    for (at, code) in out.iter_mut().zip(bytes) {
        put(at, (f32::from(*code) - EV8_STEPS) / EV8_STEPS);
    }
}

/// The code of the nearest value.
#[inline]
fn to_ev4(number: f32) -> u8 {
    let magnitude = number.abs();
    let nearest = EV4.windows(2).filter(|pair| magnitude > f32::midpoint(pair[0], pair[1])).count();
    // There is one 0.
    let is_negative = number < 0.0 && nearest > 0;
    nearest as u8 | u8::from(is_negative) << 3
}

#[expect(clippy::inline_always, reason = "its caller decides for which CPU it is compiled")]
#[inline(always)]
pub(super) fn encode_ev4(row: &[f32], out: &mut [u8]) {
    for (byte, pair) in out.iter_mut().zip(row.chunks(2)) {
        let high = pair.get(1).map_or(0, |number| to_ev4(*number));
        *byte = to_ev4(pair[0]) | high << 4;
    }
}

#[expect(clippy::inline_always, reason = "its caller decides for which CPU it is compiled")]
#[inline(always)]
pub(super) fn decode_ev4(bytes: &[u8], out: &mut [f32], put: impl Fn(&mut f32, f32)) {
    let number = |code: u8| EV4_VALUES[usize::from(code & 15)];
    let (pairs, last) = out.as_chunks_mut::<2>();
    for ([low, high], byte) in pairs.iter_mut().zip(bytes) {
        put(low, number(*byte));
        put(high, number(byte >> 4));
    }
    if let ([at], Some(byte)) = (last, bytes.last()) {
        put(at, number(*byte));
    }
}
