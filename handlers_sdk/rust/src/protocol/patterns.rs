//! Patterns for handler classes, which are names of `::`-separated segments.
//!
//! `*` as a segment matches exactly one segment, `**` any number of segments, and `*` inside a segment any number of its
//! characters. Everything else is literal. The matcher keeps one position to return to, so its time is limited by the
//! length of the pattern times the length of the name.

/// True if the text can match more than one name.
pub fn is_pattern(text: &str) -> bool {
    text.contains('*')
}

/// True if the pattern matches the name.
pub fn matches(pattern: &str, name: &str) -> bool {
    let globs: Vec<&str> = pattern.split("::").collect();
    let segments: Vec<&str> = name.split("::").collect();
    let (mut at, mut taken) = (0, 0);
    let mut back: Option<(usize, usize)> = None; // the last `**`: after a mismatch, it matches one more segment
    while taken < segments.len() {
        if at < globs.len() && globs[at] == "**" {
            back = Some((at, taken));
            at += 1;
        } else if at < globs.len() && segment_matches(globs[at], segments[taken]) {
            at += 1;
            taken += 1;
        } else if let Some((back_to, back_taken)) = back {
            back = Some((back_to, back_taken + 1));
            at = back_to + 1;
            taken = back_taken + 1;
        } else {
            return false;
        }
    }
    globs[at..].iter().all(|glob| *glob == "**")
}

/// Matches the first and the last piece at the ends, and each other piece at the leftmost position between them.
fn segment_matches(glob: &str, segment: &str) -> bool {
    let pieces: Vec<&str> = glob.split('*').collect();
    if pieces.len() == 1 {
        return segment == glob;
    }
    let (first, last) = (pieces[0], pieces[pieces.len() - 1]);
    if segment.len() < first.len() + last.len() || !segment.starts_with(first) || !segment.ends_with(last) {
        return false;
    }
    let mut rest = &segment[first.len()..segment.len() - last.len()];
    for piece in &pieces[1..pieces.len() - 1] {
        match rest.find(piece) {
            Some(start) => rest = &rest[start + piece.len()..],
            None => return false,
        }
    }
    true
}
