import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.util.Base64;
import java.util.UUID;

/**
 * Adds to an account of the Counter from outside of the rack, exactly once:
 *
 * <pre>java Add.java http://127.0.0.1:8046 1 100</pre>
 */
public class Add {
	public static void main(String[] args) throws Exception {
		String amounts = Base64.getEncoder().encodeToString(new byte[] {(byte) Integer.parseInt(args[2])});
		HttpRequest call = HttpRequest.newBuilder(URI.create(args[0] + "/call/Counter/add"))
			.header("Content-Type", "application/json")
			.header("Idempotency-Key", '"' + UUID.randomUUID().toString() + '"') // of all attempts
			.header("Prefer", "wait=10")
			.POST(HttpRequest.BodyPublishers.ofString("{\"account\": " + Integer.parseInt(args[1]) + ", \"amounts\": \"" + amounts + "\"}"))
			.build();
		HttpResponse<String> answer = send(call);
		if (answer.statusCode() != 200) {
			System.err.println(answer.body());
			System.exit(1);
		}
		System.out.println("account " + args[1] + " has " + answer.body());
	}

	/** Sends the call until it has an answer: it runs once, whatever breaks meanwhile. */
	static HttpResponse<String> send(HttpRequest call) throws Exception {
		HttpClient client = HttpClient.newHttpClient();
		for (int n = 1;; n++) {
			long pause = 1;
			try {
				HttpResponse<String> answer = client.send(call, HttpResponse.BodyHandlers.ofString());
				var after = answer.headers().firstValueAsLong("Retry-After");
				if (after.isEmpty() || n == 60) return answer;
				pause = after.getAsLong();
			} catch (java.io.IOException broken) { // the ingress is away
				if (n == 60) throw broken;
			}
			Thread.sleep(1000 * pause);
		}
	}
}
