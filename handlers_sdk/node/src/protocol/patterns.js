/**
 * Patterns for names of `::`-separated segments: the handlers that a worker offers.
 *
 * `*` as a segment matches exactly one segment, `**` any number of segments, and `*` inside a segment any number of its
 * characters; everything else is literal. The matcher keeps only one position to return to. Its time is therefore at
 * most the length of the pattern times the length of the name, even for a hostile pattern.
 */

const SEPARATOR = '::'
const ANY = '**'

/** True if the text can match more than one name. */
export const isPattern = (text) => text.includes('*')

/** True if the pattern matches the name. */
export function matches(pattern, name) {
  const globs = compile(pattern)
  const segments = name.split(SEPARATOR)
  let at = 0
  let taken = 0
  let backTo = -1 // the last `**`: after a mismatch, it matches one more segment
  let backTaken = 0
  while (taken < segments.length) {
    if (at < globs.length && globs[at] === null) {
      backTo = at
      backTaken = taken
      at += 1
    } else if (at < globs.length && segmentMatches(globs[at], segments[taken])) {
      at += 1
      taken += 1
    } else if (backTo >= 0) {
      backTaken += 1
      at = backTo + 1
      taken = backTaken
    } else {
      return false
    }
  }
  return globs.slice(at).every((glob) => glob === null)
}

/** The literal pieces of each segment between its stars; null is `**`. */
function compile(pattern) {
  const globs = []
  for (const segment of pattern.split(SEPARATOR)) {
    if (segment !== ANY) globs.push(segment.split('*'))
    else if (globs.at(-1) !== null) globs.push(null) // `**::**` is `**`
  }
  return globs
}

/** Match the first and the last piece at the ends, and each other piece at the leftmost position between them. */
function segmentMatches(pieces, segment) {
  if (pieces.length === 1) return segment === pieces[0]
  const first = pieces[0]
  const last = pieces.at(-1)
  const end = segment.length - last.length
  if (end < first.length || !segment.startsWith(first) || !segment.endsWith(last)) return false
  let at = first.length
  for (const piece of pieces.slice(1, -1)) {
    const start = segment.indexOf(piece, at)
    if (start < 0 || start + piece.length > end) return false
    at = start + piece.length
  }
  return true
}
