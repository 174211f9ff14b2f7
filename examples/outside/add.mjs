// Adds to an account of the Counter from outside of the rack, exactly once:
//
//	node add.mjs http://127.0.0.1:8046 1 100
//
// It runs wherever fetch is: Node from 18 on, Deno, Bun, and checked as TypeScript (tsc --checkJs).
// @ts-check

/** @typedef {{type: string, title: string, status: number, detail?: string, neverBegan?: boolean, exception?: {name: string, fields: object}}} Problem */

class CallError extends Error {
	/** @param {Problem} problem */
	constructor(problem) {
		super(problem.detail ?? problem.title);
		this.problem = problem;
	}
}

/** @param {number} seconds */
const pause = (seconds) => new Promise((done) => setTimeout(done, seconds * 1000));

/**
 * Makes a call. All attempts have one key, so it runs once, whatever breaks meanwhile.
 *
 * @param {string} ingress
 * @param {string} method
 * @param {object} args
 */
export async function call(ingress, method, args, attempts = 60) {
	const key = crypto.randomUUID();
	for (let n = 1; ; n++) {
		let answer;
		try {
			answer = await fetch(`${ingress}/call/${method}`, {
				method: "POST",
				headers: { "Content-Type": "application/json", "Idempotency-Key": `"${key}"`, Prefer: "wait=10" },
				body: JSON.stringify(args),
			});
		} catch (broken) { // the ingress is away
			if (n === attempts) throw broken;
			await pause(1);
			continue;
		}
		if (answer.ok) return await answer.json();
		const after = answer.headers.get("Retry-After");
		const problem = await answer.json();
		if (after === null || n === attempts) throw new CallError(problem);
		await pause(Number(after));
	}
}

const [ingress, account, amount] = process.argv.slice(2);
try {
	const amounts = btoa(String.fromCharCode(Number(amount)));
	console.log(`account ${account} has ${await call(ingress, "Counter/add", { account: Number(account), amounts })}`);
} catch (error) {
	if (!(error instanceof CallError)) throw error;
	console.error(`${error.problem.type}: ${error.message}`, JSON.stringify(error.problem.exception ?? {}));
	process.exitCode = 1;
}
