//! Text of a report inside of a page.
//!
//! **Why.** A report has names that hosts gave themselves. A page that is made of a report must not
//! run what such a name contains. So every text of a report goes through one of these functions.

use serde_json::Value;

/// Escapes text for the body of an element, and for an attribute between double quotes.
pub(super) fn text(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '"' => out += "&quot;",
            '\'' => out += "&#39;",
            // Control characters are not allowed in a page, and hide text in a terminal.
            letter if letter.is_control() => out.push(' '),
            letter => out.push(letter),
        }
    }
    out
}

/// Escapes text with figures, and writes microseconds with their sign.
pub(super) fn figures(figures: &str) -> String {
    text(&micro(figures))
}

/// Replaces the unit `us` behind a figure.
fn micro(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(" us") {
        let (before, behind) = (&rest[..at], &rest[at + 3..]);
        let is_unit = before.ends_with(|letter: char| letter.is_ascii_digit())
            && !behind.starts_with(|letter: char| letter.is_alphanumeric());
        out += before;
        out += if is_unit { " µs" } else { " us" };
        rest = behind;
    }
    out + rest
}

/// Formats JSON for an element `script`, which it cannot end: `<` is written as an escape.
pub(super) fn json(value: &Value) -> String {
    value.to_string().replace('<', "\\u003c").replace('\u{2028}', "\\u2028").replace('\u{2029}', "\\u2029")
}

/// Cuts a text that is longer than there is room for.
pub(super) fn cut(text: &str, letters: usize) -> String {
    match text.chars().count() > letters {
        true => text.chars().take(letters.saturating_sub(1)).chain(['…']).collect(),
        false => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_ends_its_element_or_attribute() {
        assert_eq!(text("<b a=\"x\" c='y'>&\u{7}"), "&lt;b a=&quot;x&quot; c=&#39;y&#39;&gt;&amp; ");
        let value = serde_json::json!({"name": "</script><script>alert(1)//"});
        let out = json(&value);
        assert!(!out.contains('<'), "{out}");
        assert_eq!(serde_json::from_str::<Value>(&out).unwrap(), value);
        assert_eq!([cut("abcdef", 4), cut("abcd", 4)], ["abc…", "abcd"]);
    }

    #[test]
    fn only_units_become_microseconds() {
        assert_eq!(figures("1.20 us, 3 us"), "1.20 µs, 3 µs");
        assert_eq!(figures("let us, 3 users"), "let us, 3 users");
    }
}
