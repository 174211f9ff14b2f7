// Adds to an account of the Counter from outside of the rack, exactly once:
//
//	node add.mts http://127.0.0.1:8046 1 100
//
// Node runs it as it is from 22.18 on, and so do Deno and Bun. For an older Node: tsc --target es2022 --module es2022 --lib es2022,dom add.mts

declare const process: { argv: string[]; exitCode?: number };

/** What a call has failed with (RFC 9457). */
interface Problem {
	type: string;
	title: string;
	status: number;
	detail?: string;
	neverBegan?: boolean;
	exception?: { name: string; fields: object };
}

class CallError extends Error {
	readonly problem: Problem;

	constructor(problem: Problem) {
		super(problem.detail ?? problem.title);
		this.problem = problem;
	}
}

const pause = (seconds: number): Promise<void> => new Promise((done) => setTimeout(done, seconds * 1000));

/** Makes a call. All attempts have one key, so it runs once, whatever breaks meanwhile. */
export async function call<Result>(ingress: string, method: string, args: object, attempts = 60): Promise<Result> {
	const key = crypto.randomUUID();
	for (let n = 1; ; n++) {
		let answer: Response;
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
		if (answer.ok) return (await answer.json()) as Result;
		const after = answer.headers.get("Retry-After");
		const problem = (await answer.json()) as Problem;
		if (after === null || n === attempts) throw new CallError(problem);
		await pause(Number(after));
	}
}

const [ingress, account, amount] = process.argv.slice(2);
try {
	const amounts = btoa(String.fromCharCode(Number(amount)));
	console.log(`account ${account} has ${await call<number | string>(ingress, "Counter/add", { account: Number(account), amounts })}`);
} catch (error) {
	if (!(error instanceof CallError)) throw error;
	console.error(`${error.problem.type}: ${error.message}`, JSON.stringify(error.problem.exception ?? {}));
	process.exitCode = 1;
}
