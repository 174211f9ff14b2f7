/** A bank, whose service is in Python, exactly once, with state: bank_service.py. */

/** The account has less than what is to be taken. */
exception NotEnough {
  1: i64 has
}

service Bank {
  /** Adds to an account, and returns what it has then. */
  i64 deposit(1: string account, 2: i64 amount)

  /** Moves money from one account to another, and returns the number of the receipt. */
  string transfer(1: string source, 2: string target, 3: i64 amount) throws (1: NotEnough short)

  /** Returns what all accounts have. */
  map<string, i64> accounts()
}
