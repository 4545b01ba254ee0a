/** The texts of failed system calls, as other languages have them. */

const TEXTS = {
  ELOOP: 'Too many levels of symbolic links',
  EISDIR: 'Is a directory',
  ENAMETOOLONG: 'File name too long',
  EIO: 'Input/output error',
}

/** The system's text of an error: `ENOENT: no such file or directory, open '/x'` → `No such file or directory`. */
export function reasonOf(error) {
  if (Object.hasOwn(TEXTS, error.code ?? '')) return TEXTS[error.code]
  const text = /^[A-Z0-9]+: ([^,]+)/.exec(error.message)?.[1] ?? error.message
  return text[0].toUpperCase() + text.slice(1)
}
