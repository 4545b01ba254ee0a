/** A queue of any length: adding and removing at its ends takes constant time, as Array.shift does not. */
export class Queue {
  constructor() {
    this.items = []
    this.head = 0
  }

  get size() {
    return this.items.length - this.head
  }

  get first() {
    return this.items[this.head]
  }

  push(item) {
    this.items.push(item)
  }

  /** A queue with the items for which `fits` returns true. */
  filter(fits) {
    const queue = new Queue()
    for (let i = this.head; i < this.items.length; i++) if (fits(this.items[i])) queue.push(this.items[i])
    return queue
  }

  unshift(item) {
    if (this.head > 0) this.items[--this.head] = item
    else this.items.unshift(item)
  }

  shift() {
    const item = this.items[this.head]
    this.items[this.head++] = undefined
    if (this.head === this.items.length) {
      this.items = []
      this.head = 0
    } else if (this.head > 1024 && this.head * 2 > this.items.length) {
      this.items = this.items.slice(this.head)
      this.head = 0
    }
    return item
  }
}
