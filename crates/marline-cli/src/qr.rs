//! QR code in the terminal, for transferring an invite to a phone's camera.
//!
//! Each character shows two modules, one above the other, as half blocks. Readers need dark modules on a bright
//! background with a bright margin, but terminals may be dark or bright. Therefore both colors are set explicitly.

use anyhow::Context;
use qrcode::{Color, EcLevel, QrCode};

/// Width of the bright margin in modules. The standard requires four, but two suffice for cameras and keep the code of
/// a typical invite narrower than 80 columns.
const MARGIN: usize = 2;
/// Escape sequence for black on white, from the 256 colors that themes do not change.
const BLACK_ON_WHITE: &str = "\x1b[38;5;16;48;5;231m";
const RESET: &str = "\x1b[0m";

/// Returns the code of an invite, as lines that each set and reset their colors.
///
/// The word is encoded in capitals, for which QR codes have a denser alphabet. Invites are valid in either case.
///
/// # Errors
/// The word is too long for a code.
pub fn invite_code(word: &str) -> anyhow::Result<String> {
    let capitals = word.to_ascii_uppercase();
    let code = QrCode::with_error_correction_level(capitals, EcLevel::L);
    let code = code.context("the invite is too long for a QR code")?;
    let width = code.width();
    let modules = code.to_colors();
    let is_dark = |x: usize, y: usize| {
        let inside = (MARGIN..MARGIN + width).contains(&x) && (MARGIN..MARGIN + width).contains(&y);
        inside && modules[(y - MARGIN) * width + (x - MARGIN)] == Color::Dark
    };
    let all = width + 2 * MARGIN;
    let mut text = String::new();
    for upper in (0..all).step_by(2) {
        text.push_str(BLACK_ON_WHITE);
        for x in 0..all {
            text.push(match (is_dark(x, upper), is_dark(x, upper + 1)) {
                (true, true) => '█',
                (true, false) => '▀',
                (false, true) => '▄',
                (false, false) => ' ',
            });
        }
        text.push_str(RESET);
        text.push('\n');
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a camera's picture of the code, with three pixels per module in each direction.
    fn render_photo(text: &str) -> String {
        const PIXELS: usize = 3;
        let mut rows: Vec<Vec<bool>> = Vec::new();
        for line in text.lines() {
            let cells = line
                .strip_prefix(BLACK_ON_WHITE)
                .and_then(|line| line.strip_suffix(RESET))
                .unwrap();
            rows.push(cells.chars().map(|cell| "█▀".contains(cell)).collect());
            rows.push(cells.chars().map(|cell| "█▄".contains(cell)).collect());
        }
        let (width, height) = (rows[0].len() * PIXELS, rows.len() * PIXELS);
        let pixel = |x: usize, y: usize| if rows[y / PIXELS][x / PIXELS] { 0 } else { 255 };
        let mut image = rqrr::PreparedImage::prepare_from_greyscale(width, height, pixel);
        let grids = image.detect_grids();
        assert_eq!(grids.len(), 1);
        grids[0].decode().unwrap().1
    }

    #[test]
    fn an_invite_is_read_back_from_the_characters_and_fits_the_terminal() {
        use marline_proxy::invite::Invite;
        let token = marline_proxy::secret::Secret::random().unwrap();
        for servers in
            [vec!["192.0.2.1:7777"], vec!["server.example.net:7777", "[2001:db8::1]:7777"]]
        {
            let servers = servers.iter().map(|server| server.parse().unwrap()).collect();
            let invite = Invite::new(servers, [7; 32], token.clone()).unwrap();
            let text = invite_code(&invite.to_word()).unwrap();
            assert!(render_photo(&text).parse::<Invite>().is_ok_and(|read| read == invite));
            let columns = text.lines().map(|line| line.chars().count()).max().unwrap();
            assert!(columns - BLACK_ON_WHITE.len() - RESET.len() <= 80, "{columns}");
        }
    }

    #[test]
    fn an_invite_too_long_for_a_qr_code_is_refused() {
        assert!(invite_code(&"A".repeat(5_000)).is_err());
    }
}
