namespace * labtest.parent

typedef i64 Account
typedef list<Account> Accounts

service Parent {
  Accounts accounts(1: i32 n) (bifrost.ref)
}
